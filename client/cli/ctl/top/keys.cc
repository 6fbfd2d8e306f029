#include "client/cli/ctl/top/keys.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::ctl {
namespace {

constexpr std::size_t kFilterMax = 64;

const JobLine* Selected(const Picture& picture, std::uint32_t id) {
  const auto found = std::find_if(picture.jobs.begin(), picture.jobs.end(),
                                  [id](const JobLine& job) { return job.id == id; });
  return found != picture.jobs.end() ? &*found : nullptr;
}

// The last character goes, whatever its bytes.
void DropLast(std::string& text) {
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0U) == 0x80U) {
    text.pop_back();
  }
  if (!text.empty()) text.pop_back();
}

}  // namespace

Action Keys::Press(int key, const Picture& picture) {
  if (key == kKeyResize) return {};
  message_.clear();
  switch (mode_) {
    case Mode::kLook:
      return PressInView(key, picture);
    case Mode::kFilter:
      return PressInFilter(key);
    case Mode::kAsk:
      return PressInAsk(key);
    case Mode::kHelp:
      mode_ = Mode::kLook;
      return {};
  }
  return {};
}

Action Keys::PressInView(int key, const Picture& picture) {
  switch (key) {
    case 'q':
    case 'Q':
      return {.kind = Action::Kind::kQuit};
    case 'h':
    case '?':
      mode_ = Mode::kHelp;
      return {};
    case ' ':
      return {.kind = Action::Kind::kReadNow};
    case 's':
      view_options_.sort =
          static_cast<JobSort>((static_cast<int>(view_options_.sort) + 1) % kJobSortsCount);
      return {};
    case 'S':
      view_options_.reversed = !view_options_.reversed;
      return {};
    case '/':
      mode_ = Mode::kFilter;
      return {};
    case kKeyEscape:
      view_options_.filter.clear();
      return {};
    case kKeyUp:
    case 'k':
      Move(-1, picture);
      return {};
    case kKeyDown:
    case 'j':
      Move(1, picture);
      return {};
    case 'p':
      return AskForPause(picture);
    case '+':
    case '=':
      return ChangeWeight(1, picture);
    case '-':
      return ChangeWeight(-1, picture);
    default:
      return {};
  }
}

Action Keys::PressInFilter(int key) {
  if (key == kKeyEnter) {
    mode_ = Mode::kLook;
  } else if (key == kKeyEscape) {
    view_options_.filter.clear();
    mode_ = Mode::kLook;
  } else if (key == kKeyBackspace) {
    DropLast(view_options_.filter);
  } else if (key >= ' ' && key <= 0xff && view_options_.filter.size() < kFilterMax) {
    view_options_.filter += static_cast<char>(key);
  }
  return {};
}

Action Keys::PressInAsk(int key) {
  mode_ = Mode::kLook;
  if (key == 'y' || key == 'Y') return asked_;
  message_ = "Nothing was changed.";
  return {};
}

Action Keys::AskForPause(const Picture& picture) {
  const JobLine* job = Selected(picture, view_options_.selected_job);
  if (job == nullptr) return {};
  mode_ = Mode::kAsk;
  asked_ = {.kind = job->is_paused ? Action::Kind::kResume : Action::Kind::kPause,
            .job = job->name,
            .owner = job->owner};
  return {};
}

Action Keys::ChangeWeight(int step, const Picture& picture) {
  const JobLine* job = Selected(picture, view_options_.selected_job);
  if (job == nullptr || (step < 0 && job->weight <= 1)) return {};
  const std::uint64_t weight = step < 0 ? job->weight - 1 : std::uint64_t{job->weight} + 1;
  return {.kind = Action::Kind::kWeight, .job = job->name, .owner = job->owner, .weight = weight};
}

void Keys::Move(int step, const Picture& picture) {
  const auto count = static_cast<int>(picture.jobs.size());
  const JobLine* job = Selected(picture, view_options_.selected_job);
  if (count == 0) return;
  const int at = job != nullptr ? static_cast<int>(job - picture.jobs.data()) : 0;
  const int next = std::clamp(at + step, 0, count - 1);
  view_options_.selected_job = picture.jobs[static_cast<std::size_t>(next)].id;
}

void Keys::Follow(const Picture& picture) {
  if (Selected(picture, view_options_.selected_job) != nullptr) return;
  view_options_.selected_job = picture.jobs.empty() ? 0 : picture.jobs.front().id;
}

std::string Keys::Message() const {
  if (mode_ == Mode::kFilter) return "/" + view_options_.filter + "_";
  if (mode_ != Mode::kAsk) return message_;
  return asked_.kind == Action::Kind::kResume
             ? fmt::format("Resume job {}? y/n", asked_.job)
             : fmt::format("Pause job {} from its next iteration on? y/n", asked_.job);
}

}  // namespace headrace::ctl
