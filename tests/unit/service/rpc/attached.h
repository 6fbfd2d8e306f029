// One attached client of a control that runs on a thread of its own.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/unit/service/rpc/caller.h"
#include "tests/unit/service/rpc/stand.h"

namespace headrace::support {

class AttachedTest : public testing::Test {
 protected:
  // The event loop's destructors may throw, a test's may not.
  ~AttachedTest() noexcept override {}

  // Starts control and attaches.
  void Begin(StandOptions options = {}) {
    stand_ = std::make_unique<ControlStand>(std::move(options));
    caller_ = std::make_unique<Caller>(loop_, stand_->socket_path());
    Attached attached = caller_->Attach({});
    ASSERT_EQ(attached.code, Code::kOk) << attached.text;
    session_ = kj::mv(attached.session);
    id_ = SessionId{attached.session_id};
  }

  CallerLoop loop_;
  std::unique_ptr<ControlStand> stand_;
  std::unique_ptr<Caller> caller_;
  schema::Session::Client session_ = nullptr;
  SessionId id_;
};

}  // namespace headrace::support
