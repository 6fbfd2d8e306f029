// The block stages that the options select, in the order that they ask for.
#pragma once

#include <string>
#include <vector>

#include "client/cli/ctl/views.h"

namespace headrace::ctl {

// What `--sort` takes. "job": by job, iteration, block and stage, as they stand in the snapshot.
// With "job" and "age" those that wait for a peer's bytes come first.
inline constexpr const char* kQueueSorts[] = {"job", "age", "bytes", "lane", "state"};

struct QueueQuery {
  std::string job{};    // empty: all, also of the next two
  std::string lane{};   // stages that gather have none yet
  std::string state{};  // gathering, waiting or moving
  std::string sort = "job";
};

// The stages wanted; the oldest and the largest first, else as in the snapshot.
std::vector<ipc::QueueRow> SelectQueue(const Snapshot& snapshot, const QueueQuery& query);

// "12", or, of a block of the plan, its iteration and its number within it: "57/12".
std::string BlockName(const ipc::QueueRow& row);
// "conv1.weight +3"; empty where the memory has no name.
std::string TensorNames(const ipc::QueueRow& row);

std::string QueueTable(const Snapshot& snapshot, const QueueQuery& query, bool with_header);
Json QueueJson(const Snapshot& snapshot, const QueueQuery& query);

}  // namespace headrace::ctl
