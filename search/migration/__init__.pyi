from search.migration.comparison import MigrationOptions as MigrationOptions
from search.migration.comparison import compare_encoders as compare_encoders
from search.migration.full import migrate_index as migrate_index
