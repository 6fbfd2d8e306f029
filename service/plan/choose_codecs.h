// Chooses the codec of each gradient between nodes, if that is left to the plan.
//
// On a lane where bytes cost time, gradients are fastest in the codec with the least time for
// encoding, sending and decoding; but for transfers that hide behind computing it is not worth its
// error. So of the assignments that are within kCodecSlack of the fastest one found, the one is
// taken that encodes only the first gradients in forward order, which are released last and needed
// first, and of those only the larger ones. Last, a codec with a smaller error replaces the fastest
// one if it is as fast.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/base/codec_choice.h"
#include "service/plan/policies.h"
#include "service/plan/recording.h"
#include "service/plan/route.h"
#include "service/plan/workload.h"

namespace headrace::plan {

// What an assignment may lose of an iteration, as a share, to one that encodes more.
inline constexpr double kCodecSlack = 0.005;
// The share of an iteration that codecs must save before a plan begins to use them. One that uses
// them does so for as long as they save a quarter of that: otherwise plans would go to and fro.
// Where times are so uneven that they do, each stop raises what it takes to begin again by as much
// as it took at first, kCodecStopsMax times.
inline constexpr double kCodecGainMin = 0.02;
inline constexpr double kCodecGainKept = 0.005;
inline constexpr std::uint32_t kCodecStopsMax = 4;

// Whether some gradient's codec is for the plan to choose.
bool LeaveCodecsToPlan(std::span<const CodecChoice> choices);

// A codec for each tensor; empty: no choice is anything but none.
std::vector<Codec> CodecsAsTheyMust(std::span<const CodecChoice> choices);
// Every choice that is free in the allowed codec that is fastest for all that have that choice,
// small ones too, since a block of several codecs costs several startups; the rest as they must.
std::vector<Codec> CodecsAsTheyMay(const Workload& work, const Route& route,
                                   std::span<const CodecChoice> choices);

// `may` with as little encoded as the iteration's time needs, and that in the codecs that err least
// of those which `choices` allow and which are as fast. The workload has none itself.
std::vector<Codec> ChooseCodecs(Policy policy, const Workload& work, const Route& route,
                                std::span<const Codec> must, std::span<const Codec> may,
                                std::span<const CodecChoice> choices);

// How long an iteration takes in the workload's codecs, by one draft that is quick to make: on the
// stage between nodes alone, for the median times. It is simulated on the whole route, over what
// was recorded. So assignments can be compared, and only one of them needs a plan.
double QuickSeconds(Policy policy, const Workload& work, const Route& route,
                    const Recording& recording, const PolicySettings& settings);

// Bytes that are encoded.
std::uint64_t CodedBytes(const Workload& work, std::span<const Codec> codecs);

// The codec of most bytes where `codecs` has another than `must`, with its cost; none: there is no
// such.
CodecCost TriedCodec(const Workload& work, const Route& route, std::span<const Codec> must,
                     std::span<const Codec> codecs);

}  // namespace headrace::plan
