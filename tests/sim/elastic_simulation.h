// A seeded, single-threaded run of a job that loses ranks, nodes and its leader, and takes others
// in: on each node the service's unchanged data path and its part in the membership, on top
// processes that train, ask who is left, and go on.
//
// What is checked: one mapping of ranks in each epoch, on all nodes; nobody is a rank who is lost,
// did not ask or was left out; sums are those of exactly the members, with their number as the
// divisor; no iteration is applied by some and not by others, nor another one by those that remain;
// nothing of an earlier epoch is delivered; nobody who is well is left out, whoever lives goes on,
// and everything is given back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/elastic_cluster.h"
#include "tests/sim/elastic_faults.h"

namespace headrace::sim {

class ElasticSimulation {
 public:
  explicit ElasticSimulation(const ElasticOptions& options) : run_(options), faults_(run_) {}

  // The first promise that was found broken, if any.
  std::optional<std::string> Run();

  const ElasticCluster& run() const { return run_; }
  const ElasticFaults& faults() const { return faults_; }
  // Of all processes.
  ElasticTraining::Counts counts() const;

 private:
  // Every process may do something, and a while passes.
  std::optional<std::string> Round();
  std::optional<std::string> RunFor(std::uint64_t rounds);
  // Until some rank has an average that another lacks; or for a while.
  std::optional<std::string> RunUntilUneven();
  // Until all that can go on have applied so many iterations more; bounded.
  std::optional<std::string> RunUntilAllGoOn(std::uint64_t iterations);
  std::optional<std::string> Check();
  bool MayWait(const ElasticProcess& process) const;
  bool AreLost() const;
  bool AsksTheDead(const ElasticProcess& process) const;
  std::optional<std::string> Finish();
  std::optional<std::string> CheckAllReturned();
  std::optional<std::string> CheckReturned(std::size_t node);

  ElasticCluster run_;
  ElasticFaults faults_;
  std::uint64_t idle_ = 0;  // rounds in which nobody applied anything
};

}  // namespace headrace::sim
