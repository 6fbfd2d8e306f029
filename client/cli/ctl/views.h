// What headracectl prints: pure functions of a snapshot. Each view is a table for people and JSON
// for programs; JSON.md lists the keys of the JSON, which do not change their meaning.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "client/cli/ctl/process.h"
#include "client/cli/ctl/snapshot.h"

namespace headrace::ctl {

using Json = nlohmann::ordered_json;

// The name of a uid; empty when it has none.
using UserNames = std::function<std::string(std::uint32_t uid)>;

// `before`: an earlier snapshot to take rates from, or null.
std::string StatusTable(const Snapshot& snapshot, Liveness liveness, const Snapshot* before,
                        bool with_header);
Json StatusJson(const Snapshot& snapshot, Liveness liveness, const Snapshot* before);

std::string JobsTable(const Snapshot& snapshot, const UserNames& users, bool with_header);
Json JobsJson(const Snapshot& snapshot, const UserNames& users);

// The ranks of every job called `name` (of several users, perhaps).
std::string RanksTable(const Snapshot& snapshot, std::string_view name, bool with_header);
Json RanksJson(const Snapshot& snapshot, std::string_view name, const UserNames& users);

// The plans of every job called `job`, predicted beside measured, as numbers and as a picture;
// words where there is none. `utf8`: what the terminal shows.
std::string PlanTable(const Snapshot& snapshot, std::string_view job, bool with_header, bool utf8);
Json PlanJson(const Snapshot& snapshot, std::string_view job);
// How the iterations under plans of a job went, summed, beside what its plan in force promises;
// null before the first has ended. `plan` may be null.
Json IterationsJson(const ipc::PlanRow* plan);

std::string LanesTable(const Snapshot& snapshot, bool with_header);
Json LanesJson(const Snapshot& snapshot);

// What each job has of each lane, or of the lane called `lane` when it is not empty.
std::string SharesTable(const Snapshot& snapshot, std::string_view lane, bool with_header);
Json SharesJson(const Snapshot& snapshot, std::string_view lane);

// What each user has of the service, and may have.
std::string UsersTable(const Snapshot& snapshot, const UserNames& users, bool with_header);
Json UsersJson(const Snapshot& snapshot, const UserNames& users);
// "1000 (ada)", or the number alone.
std::string UserText(std::uint32_t uid, const UserNames& users);

// A text field as JSON can carry it: bytes that are no UTF-8 become U+FFFD.
std::string JsonText(std::string_view text);

}  // namespace headrace::ctl
