#include "client/cli/replay/rank_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace headrace::replay {
namespace {

// The C library's numbers are the protocol's.
Status StatusOf(hr_status status, const hr_error& error) {
  if (status == HR_OK) return {};
  return Error(static_cast<Code>(status), error.text);
}

template <std::size_t N>
Status SetField(char (&field)[N], const std::string& text, const char* what) {
  if (text.size() >= N) {
    return Error(Code::kInvalidArgument, fmt::format("{} \"{}\" has {} bytes, {} are possible",
                                                     what, text, text.size(), N - 1));
  }
  std::memset(field, 0, N);
  std::memcpy(field, text.data(), text.size());
  return {};
}

Result<hr_options> OptionsOf(const AttachOptions& attach) {
  hr_options options;
  // What the environment says wrongly is said better below, by the field it concerns.
  hr_options_init(&options, nullptr);
  options.rank = attach.rank;
  options.world_size = attach.world_size;
  options.timeout_ms = attach.timeout_ms;
  for (const Status& status : {SetField(options.socket_path, attach.socket_path, "socket"),
                               SetField(options.job, attach.job, "job"),
                               SetField(options.program, "headracectl replay", "program")}) {
    if (!status) return status.error();
  }
  // Where nothing is given, it is as the environment says.
  if (!attach.rendezvous.empty()) {
    if (Status status = SetField(options.rendezvous, attach.rendezvous, "rendezvous"); !status) {
      return status.error();
    }
  }
  if (!attach.architecture.empty()) {
    if (Status status = SetField(options.architecture, attach.architecture, "architecture");
        !status) {
      return status.error();
    }
  }
  return options;
}

}  // namespace

Result<RankSession> RankSession::Attach(const AttachOptions& attach, const Profile& profile) {
  const Result<hr_options> options = OptionsOf(attach);
  if (!options) return options.error();
  hr_error error{};
  hr_session* session = nullptr;
  if (Status status = StatusOf(hr_open(&*options, &session, &error), error); !status) {
    return status.error();
  }
  RankSession rank(session);
  if (Status status = rank.RegisterGradients(attach, profile); !status) return status.error();
  return rank;
}

Status RankSession::RegisterGradients(const AttachOptions& attach, const Profile& profile) {
  hr_error error{};
  hr_segment* segment = nullptr;
  hr_status status = hr_segment_create(session_.get(), profile.bytes(), &segment, &error);
  if (status != HR_OK) return StatusOf(status, error);
  auto* memory = static_cast<std::byte*>(hr_segment_address(segment));
  std::vector<hr_tensor_spec> specs;
  std::size_t offset = 0;
  for (const Tensor& tensor : profile.tensors) {
    specs.push_back({segment, offset, tensor.elements, static_cast<hr_dtype>(profile.dtype),
                     tensor.name.c_str(), static_cast<std::uint32_t>(specs.size())});
    gradients_.emplace_back(memory + offset, tensor.elements * SizeOf(profile.dtype));
    offset += gradients_.back().size();
  }
  operations_.resize(specs.size());
  hr_layout_options options;
  status = hr_layout_options_init(&options, &error);
  if (status != HR_OK) return StatusOf(status, error);
  options.reduction = HR_AVERAGE;
  if (!attach.policy.empty()) {
    if (Status set = SetField(options.policy, attach.policy, "policy"); !set) return set;
  }
  status = hr_layout_create(session_.get(), specs.data(), specs.size(), &options, &layout_, &error);
  return StatusOf(status, error);
}

Status RankSession::BeginBackward() {
  hr_error error{};
  return StatusOf(hr_layout_begin_backward(layout_, &error), error);
}

Status RankSession::Post(std::size_t index) {
  hr_error error{};
  const auto number = static_cast<std::uint32_t>(index);
  return StatusOf(hr_layout_post(layout_, number, &operations_[index], &error), error);
}

Result<bool> RankSession::IsOpen(std::size_t index) {
  if (operations_[index] == 0) return false;
  hr_error error{};
  int ended = 0;
  const hr_status status = hr_test(session_.get(), operations_[index], &ended, &error);
  if (status != HR_OK) return StatusOf(status, error).error();
  return ended == 0;
}

Status RankSession::Wait(std::size_t index) {
  hr_error error{};
  return StatusOf(hr_layout_wait(layout_, static_cast<std::uint32_t>(index), -1, &error), error);
}

Status RankSession::EndForward() {
  hr_error error{};
  return StatusOf(hr_layout_end_forward(layout_, &error), error);
}

Result<bool> RankSession::AllAgree(bool yes) {
  hr_error error{};
  std::int32_t answer = yes ? 1 : 0;
  hr_operation operation = 0;
  hr_status status =
      hr_all_reduce_array(session_.get(), &answer, 1, HR_INT32, HR_MIN, &operation, &error);
  if (status == HR_OK) status = hr_wait(session_.get(), operation, -1, &error);
  if (status != HR_OK) return StatusOf(status, error).error();
  return answer == 1;
}

}  // namespace headrace::replay
