// The few lines that a test program needs: CHECK counts and reports, TEST registers.
#pragma once

#include <cstdio>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*run)();
};
inline std::vector<Test> tests;
inline int passed = 0;
inline int failed = 0;

struct Register {
  Register(const char* name, void (*run)()) { tests.push_back({name, run}); }
};

inline void that(bool holds, const char* text, const char* file, int line) {
  ++(holds ? passed : failed);
  if (!holds) std::printf("%s:%d: CHECK(%s) is false\n", file, line, text);
}

inline int run_all() {
  for (const Test& test : tests) {
    const int before = failed;
    test.run();
    std::printf("%s %s\n", failed == before ? "ok    " : "FAILED", test.name);
  }
  std::printf("%zu tests, %d checks, %d failed\n", tests.size(), passed + failed, failed);
  // A program that checked nothing has not passed.
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace check

#define CHECK(condition) check::that(static_cast<bool>(condition), #condition, __FILE__, __LINE__)
#define CHECK_THROWS(type, expression)                                     \
  do {                                                                     \
    bool thrown = false;                                                   \
    try {                                                                  \
      (void)(expression);                                                  \
    } catch (const type&) {                                                \
      thrown = true;                                                       \
    }                                                                      \
    check::that(thrown, #expression " throws " #type, __FILE__, __LINE__); \
  } while (false)
#define TEST(name)                                       \
  static void name();                                    \
  static const check::Register name##_test(#name, name); \
  static void name()
