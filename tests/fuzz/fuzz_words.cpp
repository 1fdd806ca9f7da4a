// fuzz_words [CORRUPTIONS [SEED]]
//
// Overwrites words of a segment in use, and lets its participants do everything in between: our own loop
// of random and aimed damages, under AddressSanitizer and UndefinedBehaviourSanitizer.
#include "run_of.h"
#include "victim.h"

using namespace fuzz;

int main(int count, char** arguments) {
  const RunOf run = run_of(count, arguments, 20'000);
  u64 damages = 0;
  for (u64 input = 0; damages < run.corruptions; ++input) {
    Random random(run.seed + input);
    Victim victim;
    for (u64 left = 1 + random() % 40; left > 0; --left) {
      victim.damage(random);
      ++damages;
      if (random() % 4 == 0) victim.use(random());
    }
    victim.use(random());
    victim.attach();
  }
  return tried(damages);
}
