"""The mutants: each leaves out one rule of DESIGN.md, "The entry word", or of its neighbours."""

import rules_of_announcing
import rules_of_living
import rules_of_putting
import rules_of_reading
from mutant import Mutant

MUTANTS: list[Mutant] = [
    *rules_of_announcing.MUTANTS,
    *rules_of_putting.MUTANTS,
    *rules_of_reading.MUTANTS,
    *rules_of_living.MUTANTS,
]
