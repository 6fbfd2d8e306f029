#include "tests/unit/plan/support.h"

#include <algorithm>
#include <cmath>

namespace headrace::plan {
namespace {

// Between low and high, evenly on a logarithmic scale.
double Spread(Random& random, double low, double high) {
  return low * std::pow(high / low, random.Unit());
}

PiecewiseCost BentLine(Random& random, const Profile& profile) {
  PiecewiseCost line{{RandomLine(random, profile)}};
  const std::uint64_t count = Below(random, 3);
  for (std::uint64_t index = 0; index < count; ++index) {
    CostPiece piece = RandomLine(random, profile);
    piece.from_bytes = line.pieces.back().from_bytes + 1 + Below(random, 1 << 20);
    line.pieces.push_back(piece);
  }
  return line;
}

}  // namespace

Profile ProfileOf(const std::vector<Row>& rows, DType dtype) {
  Profile profile{"by hand", dtype, {}};
  for (const Row& row : rows) {
    profile.tensors.push_back({"t" + std::to_string(profile.tensors.size()), row.elements,
                               row.backward_s, row.forward_s});
  }
  return profile;
}

Profile RandomProfile(Random& random, std::size_t tensors_max, std::uint64_t elements_max,
                      DType dtype) {
  std::vector<Row> rows(1 + Below(random, tensors_max));
  for (Row& row : rows) {
    row.elements =
        static_cast<std::uint64_t>(Spread(random, 1, static_cast<double>(elements_max) + 0.999));
    row.backward_s = Below(random, 8) == 0 ? 0 : Spread(random, 1e-5, 1e-2);
    row.forward_s = Below(random, 8) == 0 ? 0 : Spread(random, 1e-5, 1e-2);
  }
  return ProfileOf(rows, dtype);
}

Profile NetworkProfile(std::size_t tensors, std::uint64_t seed) {
  Random random(seed);
  std::vector<Row> rows(tensors);
  for (std::size_t l = 0; l < tensors; ++l) {
    const bool is_large = l % 3 == 0;
    const double depth = 1 + 3 * static_cast<double>(l) / static_cast<double>(tensors);
    rows[l].elements = is_large ? static_cast<std::uint64_t>(Spread(random, 1e4, 4e5) * depth)
                                : 64 + Below(random, 2000);
    rows[l].backward_s = Spread(random, 1e-4, is_large ? 4e-3 : 5e-4) / depth;
    rows[l].forward_s = rows[l].backward_s / 2;
  }
  return ProfileOf(rows);
}

CostPiece RandomLine(Random& random, const Profile& profile) {
  const Workload work = MakeWorkload(profile);
  const double compute_s = work.backward_s() + work.forward_s() + 1e-6;
  const double ratio = Spread(random, 0.05, 20);
  const double startup_s = Below(random, 10) == 0 ? 0 : Spread(random, 1e-6, 0.3) * compute_s;
  return {0, startup_s, ratio * compute_s / static_cast<double>(work.total_bytes())};
}

Route RandomRoute(Random& random, const Profile& profile) {
  const auto straight = [&] { return PiecewiseCost{{RandomLine(random, profile)}}; };
  switch (Below(random, 7)) {
    case 0:
      return AllReduceRoute(straight());
    case 1:
      return AllReduceRoute(BentLine(random, profile));
    case 2:
      return ParameterServerRoute(straight(), straight(), Placement::kExtra);
    case 3:
      return ParameterServerRoute(straight(), straight(), Placement::kColocated);
    case 4:
      return HierarchyRoute(straight(), straight(), straight());
    case 5:
      return RailsRoute({straight(), straight(), straight()});
    default:
      return ParameterServerRoute(BentLine(random, profile), BentLine(random, profile),
                                  Placement::kExtra);
  }
}

}  // namespace headrace::plan
