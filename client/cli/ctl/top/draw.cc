#include "client/cli/ctl/top/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "client/cli/ctl/top/grid.h"
#include "client/cli/ctl/units.h"
#include "ipc/base/age.h"

namespace headrace::ctl {
namespace {

constexpr std::size_t kBarCells = 16;
// Columns for the name of a job or tensor, which may be much longer.
constexpr std::size_t kNameColumns = 24;
constexpr double kNearlyFull = 0.9;

struct Section {
  std::vector<GridColumn> columns;
  std::vector<GridRow> rows;
  std::size_t rows_shown = 0;
  bool is_shown = false;
};

// As wide as rates usually are, so that columns keep their place from screen to screen.
std::string Rate(double bytes_per_s) {
  return fmt::format("{:>10}", FormatRate(static_cast<std::uint64_t>(bytes_per_s), kSecond));
}

StyledText Cell(std::string text, Style style = Style::kPlain) {
  return {text.empty() ? "-" : std::move(text), style};
}

Style StyleOf(const JobLine& job) {
  if (job.is_failed) return Style::kBad;
  return job.state == "running" ? Style::kGood : Style::kWarning;
}

// A job that failed says why in place of its numbers' last column.
Section Jobs(const Picture& picture, const ViewOptions& view_options, bool utf8) {
  Section section{{{"JOB"},
                   {"STATE"},
                   {"RANKS", true, 2},
                   {"ITERATION", true, 4},
                   {"TIME", true, 1},
                   {"HIDDEN", true, 3},
                   {"RATE", true, 1},
                   {"WEIGHT", true, 6},
                   {"PRIO", true, 6},
                   {"LIMIT", true, 7},
                   {"PLAN BY", false, 8, true}},
                  {}};
  for (const JobLine& job : picture.jobs) {
    const std::string hidden = job.hidden ? fmt::format("{:.0f} %", 100 * *job.hidden) : "";
    section.rows.push_back(
        {{Cell(CutTo(job.name, kNameColumns, utf8)), Cell(job.state, StyleOf(job)),
          Cell(fmt::format("{} here of {}", job.ranks_attached, job.world_size)),
          Cell(job.iteration > 0 ? std::to_string(job.iteration) : ""),
          Cell(job.iteration_ns ? fmt::format("{:>7}", FormatAge(*job.iteration_ns)) : ""),
          Cell(hidden), Cell(job.bytes_per_s ? Rate(*job.bytes_per_s) : ""),
          Cell(std::to_string(job.weight)), Cell(std::to_string(job.priority)),
          Cell(FormatRateLimit(job.limit_bytes_per_s)),
          Cell(job.is_failed ? job.failure : job.policy)},
         job.id == view_options.selected_job});
  }
  return section;
}

Section Lanes(const Picture& picture, bool utf8) {
  Section section{{{"LANE"},
                   {"BUSY", false, 1},
                   {"", true, 1},
                   {"RATE", true},
                   {"QUEUED", true, 3},
                   {"MOVING", true, 4},
                   {"USED BY", false, 2, true}},
                  {}};
  for (const LaneLine& lane : picture.lanes) {
    std::string users;
    for (const LaneUser& user : lane.users) {
      users += fmt::format("{}{} {:.0f} %", users.empty() ? "" : ", ", user.job, 100 * user.share);
    }
    const double busy = lane.busy.value_or(0);
    section.rows.push_back(
        {{Cell(lane.name),
          Cell(Bar(busy, kBarCells, utf8), busy >= kNearlyFull ? Style::kWarning : Style::kGood),
          Cell(lane.busy ? fmt::format("{:3.0f} %", 100 * busy) : "-"),
          Cell(Rate(lane.bytes_per_s)), Cell(std::to_string(lane.queued_stages)),
          Cell(std::to_string(lane.in_flight_stages)), Cell(users)}});
  }
  return section;
}

Section Ranks(const Picture& picture) {
  Section section{{{"SLOWEST RANK"},
                   {"PID", true, 3},
                   {"LAST", true, 1},
                   {"LATE BY", true},
                   {"WAITED", true, 2},
                   {"", false, 4, true}},
                  {}};
  for (const RankLine& rank : picture.ranks) {
    const auto posts = static_cast<TimeNs>(std::max<std::uint64_t>(rank.last_posts, 1));
    section.rows.push_back(
        {{Cell(fmt::format("{} of {}", rank.rank, rank.job)),
          Cell(std::to_string(rank.pid)),
          Cell(fmt::format("{:>4} times", rank.last_posts)),
          Cell(FormatAge(rank.late_ns / posts)),
          Cell(rank.waited_ns >= 0 ? FormatAge(rank.waited_ns) : std::string("-")),
          {"", Style::kPlain}}});
  }
  return section;
}

Section Waits(const Picture& picture, bool utf8) {
  Section section{{{"OLDEST WAIT"},
                   {"BLOCK", true, 2},
                   {"AGE", true},
                   {"TENSOR", false, 3},
                   {"WHY", false, 0, true, 44}},
                  {}};
  for (const WaitLine& wait : picture.waits) {
    section.rows.push_back({{Cell(CutTo(wait.job, kNameColumns, utf8)), Cell(wait.block),
                             Cell(fmt::format("{:>7}", FormatAge(wait.age_ns))),
                             Cell(CutTo(wait.tensor, kNameColumns, utf8)), Cell(wait.why)}});
  }
  return section;
}

// Each section its heading and a row, in order, while there is room; then a row to each in turn.
void ShareOut(std::array<Section*, 4> sections, std::size_t room) {
  for (Section* section : sections) {
    const std::size_t least = section->rows.empty() ? 1 : 2;
    if (room < least) return;
    section->is_shown = true;
    section->rows_shown = least - 1;
    room -= least;
  }
  for (bool gave = true; gave && room > 0;) {
    gave = false;
    for (Section* section : sections) {
      if (room == 0 || section->rows_shown >= section->rows.size()) continue;
      ++section->rows_shown;
      --room;
      gave = true;
    }
  }
}

// Rows of which the selected one is among those shown.
void Scroll(Section& section) {
  for (std::size_t i = 0; i < section.rows.size(); ++i) {
    if (!section.rows[i].selected || i < section.rows_shown) continue;
    const auto first = section.rows.begin() + static_cast<std::ptrdiff_t>(i - section.rows_shown);
    section.rows.erase(section.rows.begin(), first + 1);
    return;
  }
}

std::string TitleText(const Picture& picture, const Frame& frame) {
  if (!frame.trouble.empty()) return frame.trouble;
  if (!IsRunning(picture.liveness)) {
    return fmt::format("headraced (pid {}) is {}: this is what it wrote last", picture.pid,
                       LivenessName(picture.liveness));
  }
  const auto count = [](std::size_t number, std::string_view of) {
    return fmt::format("{} {}{}", number, of, number == 1 ? "" : "s");
  };
  return fmt::format("headraced {}  up {}  {}, {}, {}  {}", picture.version,
                     FormatAge(picture.uptime_ns), count(picture.jobs_count, "job"),
                     count(picture.sessions, "rank"), count(picture.waits.size(), "wait"),
                     FormatRate(static_cast<std::uint64_t>(picture.bytes_per_s), kSecond));
}

Line Title(const Picture& picture, const Frame& frame) {
  const auto width = static_cast<std::size_t>(frame.width);
  const bool has_clock = WidthOf(frame.clock) + 24 < width;
  const std::size_t room = has_clock ? width - WidthOf(frame.clock) - 2 : width;
  std::string text = PadTo(fmt::format(" {}", TitleText(picture, frame)), room, frame.utf8);
  if (has_clock) text += fmt::format(" {} ", frame.clock);
  const bool is_well = frame.trouble.empty() && IsRunning(picture.liveness);
  return Line().Add(PadTo(text, width, frame.utf8), is_well ? Style::kTitle : Style::kBad);
}

Line Footer(const ViewOptions& view_options, const Frame& frame) {
  const auto width = static_cast<std::size_t>(frame.width);
  if (!frame.message.empty()) {
    return Line().Add(CutTo(frame.message, width, frame.utf8),
                      frame.asks ? Style::kWarning : Style::kPlain);
  }
  std::string text =
      fmt::format("q quit  h help  p pause  +/- weight  s sort: {}{}",
                  JobSortName(view_options.sort), view_options.reversed ? ", reversed" : "");
  text += view_options.filter.empty() ? "  / filter"
                                      : fmt::format("  / filter: {}", view_options.filter);
  return Line().Add(CutTo(text, width, frame.utf8), Style::kFaint);
}

}  // namespace

Screen Draw(const Picture& picture, const ViewOptions& view_options, const Frame& frame) {
  Screen screen{std::max(frame.width, 0), std::max(frame.height, 0), {}};
  if (screen.width == 0 || screen.height == 0) return screen;
  screen.lines.push_back(Title(picture, frame));
  const std::size_t room = screen.height > 2 ? static_cast<std::size_t>(screen.height) - 2 : 0;
  Section jobs = Jobs(picture, view_options, frame.utf8);
  Section lanes = Lanes(picture, frame.utf8);
  Section ranks = Ranks(picture);
  Section waits = Waits(picture, frame.utf8);
  ShareOut({&jobs, &waits, &lanes, &ranks}, room);
  Scroll(jobs);
  for (const Section* section : {&jobs, &lanes, &ranks, &waits}) {
    if (!section->is_shown) continue;
    std::vector<Line> lines = LayOut(section->columns, section->rows, section->rows_shown,
                                     static_cast<std::size_t>(screen.width), frame.utf8);
    std::move(lines.begin(), lines.end(), std::back_inserter(screen.lines));
  }
  if (screen.height > 1) {
    screen.lines.resize(static_cast<std::size_t>(screen.height) - 1);
    screen.lines.push_back(Footer(view_options, frame));
  }
  return screen;
}

Screen DrawHelp(const Frame& frame) {
  constexpr std::array kHelp = {
      "  q            quit",
      "  up, down     select a job (also k and j)",
      "  p            pause the selected job, or resume it; asks first",
      "  + -          the selected job's weight, from its next iteration on",
      "  s S          sort jobs by the next column, or the other way round",
      "  /            show only what contains a text; Enter keeps it, Escape ends it",
      "  space        read the board now",
      "  h ?          this help",
      "",
      "  TIME         of an iteration, mean since the screen before",
      "  HIDDEN       share of the communication that no forward pass waited for",
      "  RATE         what its stages moved, on all lanes",
      "  BUSY         share of the time in which the lane moved something",
      "  LATE BY      after the first of the node's ranks, mean since the screen before",
      "",
      "  Any key goes back.",
  };
  Screen screen{std::max(frame.width, 0), std::max(frame.height, 0), {}};
  const auto width = static_cast<std::size_t>(screen.width);
  const auto height = static_cast<std::size_t>(screen.height);
  if (height == 0 || width == 0) return screen;
  screen.lines.push_back(
      Line().Add(PadTo(" headracectl top: keys and columns", width, frame.utf8), Style::kTitle));
  for (const char* text : kHelp) {
    if (screen.lines.size() < height) {
      screen.lines.push_back(Line().Add(CutTo(text, width, frame.utf8)));
    }
  }
  return screen;
}

}  // namespace headrace::ctl
