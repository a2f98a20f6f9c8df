from search.migration.comparison import MigrationOptions as MigrationOptions
from search.migration.comparison import compare_encoders as compare_encoders
from search.migration.full import migrate_index as migrate_index
from search.migration.partial import map_index as map_index
from search.migration.partial import rescore_index as rescore_index
from search.migration.vectors import GivenQueries as GivenQueries
from search.migration.vectors import compare_vectors as compare_vectors
