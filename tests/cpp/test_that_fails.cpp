#include "check.h"

TEST(a_false_check_fails_the_program) { CHECK(1 == 2); }
