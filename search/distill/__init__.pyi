from search.distill.distill import DistillOptions as DistillOptions
from search.distill.distill import distill_index as distill_index
