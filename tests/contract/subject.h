// A transport under test, with whatever makes its time pass.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace headrace::transport {

class Subject {
 public:
  virtual ~Subject() = default;
  virtual Transport& transport() = 0;
  virtual TimeNs Now() = 0;

  // One call of DoWork. Where that says to wait and a transfer is open, waits until the transport
  // asks to be called again.
  virtual void Step(std::vector<Completion>& completions) = 0;

  // Posts; the transport must accept.
  void Post(const Transfer& transfer);
  // Steps until `count` completions came.
  std::vector<Completion> Collect(std::size_t count);
  // Posts one transfer and returns its completion.
  Completion Run(const Transfer& transfer);
};

struct SubjectKind {
  std::string name;
  std::function<std::unique_ptr<Subject>()> make;
  // Why this machine has none, in which case its tests are skipped; "" where it has one.
  std::function<std::string()> missing = [] { return std::string(); };

  // For ctest's list of names, which would show the bytes of it.
  friend void PrintTo(const SubjectKind& kind, std::ostream* out) { *out << kind.name; }
};

// Every transport that a program of tests holds to the contract; each program has its own list.
std::vector<SubjectKind> AllSubjects();

// A test over all of them.
class TransportContract : public ::testing::TestWithParam<SubjectKind> {
 protected:
  void SetUp() override {
    const std::string missing = GetParam().missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
    subject_ = GetParam().make();
  }

  std::unique_ptr<Subject> subject_;
};

inline std::string SubjectName(const ::testing::TestParamInfo<SubjectKind>& test) {
  return test.param.name;
}

}  // namespace headrace::transport
