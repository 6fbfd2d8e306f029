// What one thread of a kernel does. Compiled by nvcc for GPUs, and for the host, where the tests'
// double of CUDA's driver runs the same code for every thread of a launch.
//
// Threads share the units of all stretches in strides, so that neighbours read neighbouring memory;
// each keeps several loads of 16 bytes in flight where all buffers lie alike, eight where there are
// 2, 4 or 8 inputs of floating point. They never meet: an
// element is read from all inputs, in their order, and written to all outputs by one thread, so
// outputs may be inputs.
#pragma once

#include <cstdlib>

#include "transport/nvlink/kernel_elements.h"

namespace headrace::transport::kernels {

struct alignas(kUnitSize) Vector {
  std::uint32_t words[4];
};

// On the host a misaligned access, which would break a GPU's context, ends the program.
template <class Word>
HR_KERNEL Word Load(const std::byte* from) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const Word*>(from);
#else
  if (AddressOf(from) % sizeof(Word) != 0) abort();
  Word word;
  memcpy(&word, from, sizeof(Word));
  return word;
#endif
}

template <class Word>
HR_KERNEL void Store(std::byte* to, const Word& word) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<Word*>(to) = word;
#else
  if (AddressOf(to) % sizeof(Word) != 0) abort();
  memcpy(to, &word, sizeof(Word));
#endif
}

template <class Word>
HR_KERNEL Vector LoadInWords(const std::byte* from) {
  Word words[kUnitSize / sizeof(Word)];
  HR_UNROLL for (std::uint32_t i = 0; i < kUnitSize / sizeof(Word); ++i) {
    words[i] = Load<Word>(from + i * sizeof(Word));
  }
  Vector vector;
  memcpy(&vector, words, sizeof(vector));
  return vector;
}

template <class Word>
HR_KERNEL void StoreInWords(std::byte* to, const Vector& vector) {
  Word words[kUnitSize / sizeof(Word)];
  memcpy(words, &vector, sizeof(vector));
  HR_UNROLL for (std::uint32_t i = 0; i < kUnitSize / sizeof(Word); ++i) {
    Store<Word>(to + i * sizeof(Word), words[i]);
  }
}

// 16 bytes, by the widest accesses that their place allows; all threads take the same way.
template <bool kAligned>
HR_KERNEL Vector LoadVector(const std::byte* from) {
  if constexpr (kAligned) return Load<Vector>(from);
  const std::uintptr_t at = AddressOf(from);
  if (at % 16 == 0) return Load<Vector>(from);
  if (at % 8 == 0) return LoadInWords<std::uint64_t>(from);
  if (at % 4 == 0) return LoadInWords<std::uint32_t>(from);
  if (at % 2 == 0) return LoadInWords<std::uint16_t>(from);
  return LoadInWords<std::uint8_t>(from);
}

template <bool kAligned>
HR_KERNEL void StoreVector(std::byte* to, const Vector& vector) {
  if constexpr (kAligned) return Store<Vector>(to, vector);
  const std::uintptr_t at = AddressOf(to);
  if (at % 16 == 0) return Store<Vector>(to, vector);
  if (at % 8 == 0) return StoreInWords<std::uint64_t>(to, vector);
  if (at % 4 == 0) return StoreInWords<std::uint32_t>(to, vector);
  if (at % 2 == 0) return StoreInWords<std::uint16_t>(to, vector);
  StoreInWords<std::uint8_t>(to, vector);
}

// kInputs: how many inputs there are, for loops without ends to look for; 0: work.inputs_count.
template <class Element, class Operation, std::uint32_t kInputs>
struct Reduce {
  using Stored = typename Element::Stored;
  using Value = typename Element::Value;
  static constexpr std::uint32_t kElements = kUnitSize / sizeof(Stored);
  // Bytes of registers that the sums of one unit take: one for each element, however small.
  static constexpr std::uint32_t kSumsSize = kElements * (sizeof(Value) < 4 ? 4 : sizeof(Value));
  // Units at once, where all lie alike: eight loads of 16 bytes where inputs are counted here, else
  // as many as leave their sums within 32 registers, and four at most.
  static constexpr std::uint32_t kUnroll = kInputs != 0      ? 8 / kInputs
                                           : kSumsSize <= 32 ? 4
                                           : kSumsSize <= 64 ? 2
                                                             : 1;
  static constexpr std::uint32_t kUnrollUnaligned = 1;

  static HR_KERNEL void Decode(const Vector& vector, Value (&values)[kElements]) {
    Stored stored[kElements];
    memcpy(stored, &vector, sizeof(stored));
    HR_UNROLL for (std::uint32_t i = 0; i < kElements; ++i) values[i] = Element::Decode(stored[i]);
  }

  static HR_KERNEL Vector Encode(const Value (&sums)[kElements], const KernelWork& work) {
    Vector vector;
    if constexpr (requires { Element::EncodePair(sums[0], sums[0]); }) {
      HR_UNROLL for (std::uint32_t i = 0; i < kElements; i += 2) {
        vector.words[i / 2] = Element::EncodePair(Operation::Finish(sums[i], work),
                                                  Operation::Finish(sums[i + 1], work));
      }
    } else {
      Stored stored[kElements];
      HR_UNROLL for (std::uint32_t i = 0; i < kElements; ++i) {
        stored[i] = Element::Encode(Operation::Finish(sums[i], work));
      }
      memcpy(&vector, stored, sizeof(stored));
    }
    return vector;
  }

  static HR_KERNEL void Combine(Value (&sums)[kElements], const Vector& next) {
    Value values[kElements];
    Decode(next, values);
    HR_UNROLL for (std::uint32_t i = 0; i < kElements; ++i) {
      sums[i] = Operation::Combine(sums[i], values[i]);
    }
  }

  // All loads stand before the first sum, so that all of them are in flight at once.
  template <bool kAligned, std::uint32_t kCount>
  static HR_KERNEL void SumLoadedFirst(const KernelWork& work, const KernelStretch& stretch,
                                       std::uint32_t at, std::uint32_t step,
                                       Value (&sums)[kCount][kElements]) {
    Vector loaded[kInputs][kCount];
    HR_UNROLL for (std::uint32_t input = 0; input < kInputs; ++input) {
      const std::byte* const from = InputOf(work, stretch, input) + at;
      HR_UNROLL for (std::uint32_t u = 0; u < kCount; ++u) {
        loaded[input][u] = LoadVector<kAligned>(from + std::size_t{u} * step);
      }
    }
    HR_UNROLL for (std::uint32_t u = 0; u < kCount; ++u) {
      Decode(loaded[0][u], sums[u]);
      HR_UNROLL for (std::uint32_t input = 1; input < kInputs; ++input) {
        Combine(sums[u], loaded[input][u]);
      }
    }
  }

  // For as many inputs as there are.
  template <bool kAligned, std::uint32_t kCount>
  static HR_KERNEL void SumInTurn(const KernelWork& work, const KernelStretch& stretch,
                                  std::uint32_t at, std::uint32_t step,
                                  Value (&sums)[kCount][kElements]) {
    [[maybe_unused]] constexpr std::uint32_t kAtATime = kAligned ? 4 : 1;
    const std::byte* from = InputOf(work, stretch, 0) + at;
    HR_UNROLL for (std::uint32_t u = 0; u < kCount; ++u) {
      Decode(LoadVector<kAligned>(from + std::size_t{u} * step), sums[u]);
    }
    HR_UNROLL_BY_AT_A_TIME for (std::uint32_t input = 1; input < work.inputs_count; ++input) {
      from = InputOf(work, stretch, input) + at;
      HR_UNROLL for (std::uint32_t u = 0; u < kCount; ++u) {
        Combine(sums[u], LoadVector<kAligned>(from + std::size_t{u} * step));
      }
    }
  }

  // kCount full units, `step` bytes apart, from byte `at` of the stretch on.
  template <bool kAligned, std::uint32_t kCount>
  static HR_KERNEL void Units(const KernelWork& work, const KernelStretch& stretch,
                              std::uint32_t at, std::uint32_t step) {
    Value sums[kCount][kElements];
    if constexpr (kInputs != 0) {
      SumLoadedFirst<kAligned>(work, stretch, at, step, sums);
    } else {
      SumInTurn<kAligned>(work, stretch, at, step, sums);
    }
    Vector results[kCount];
    HR_UNROLL for (std::uint32_t u = 0; u < kCount; ++u) results[u] = Encode(sums[u], work);
    HR_NO_UNROLL for (std::uint32_t i = 0; i < stretch.outputs_count; ++i) {
      std::byte* const to = OutputOf(work, stretch, stretch.first_output + i) + at;
      HR_UNROLL for (std::uint32_t u = 0; u < kCount; ++u) {
        StoreVector<kAligned>(to + std::size_t{u} * step, results[u]);
      }
    }
  }

  // Bytes [begin, end) of the stretch, less than a unit.
  static HR_KERNEL void Part(const KernelWork& work, const KernelStretch& stretch,
                             std::uint32_t begin, std::uint32_t end) {
    HR_NO_UNROLL for (std::uint32_t at = begin; at < end; at += sizeof(Stored)) {
      Value sum = Element::Decode(Load<Stored>(InputOf(work, stretch, 0) + at));
      HR_NO_UNROLL for (std::uint32_t input = 1; input < work.inputs_count; ++input) {
        const auto next = Load<Stored>(InputOf(work, stretch, input) + at);
        sum = Operation::Combine(sum, Element::Decode(next));
      }
      const Stored result = Element::Encode(Operation::Finish(sum, work));
      HR_NO_UNROLL for (std::uint32_t i = 0; i < stretch.outputs_count; ++i) {
        Store<Stored>(OutputOf(work, stretch, stretch.first_output + i) + at, result);
      }
    }
  }
};

// From one input to some outputs, bytes as they are.
struct Copy {
  static constexpr std::uint32_t kUnroll = 8;
  static constexpr std::uint32_t kUnrollUnaligned = 8;

  template <bool kAligned, std::uint32_t kCount>
  static HR_KERNEL void Units(const KernelWork& work, const KernelStretch& stretch,
                              std::uint32_t at, std::uint32_t step) {
    const std::byte* const from = InputOf(work, stretch, stretch.first_input) + at;
    Vector vectors[kCount];
    HR_UNROLL for (std::uint32_t u = 0; u < kCount; ++u) {
      vectors[u] = LoadVector<kAligned>(from + std::size_t{u} * step);
    }
    HR_NO_UNROLL for (std::uint32_t i = 0; i < stretch.outputs_count; ++i) {
      std::byte* const to = OutputOf(work, stretch, stretch.first_output + i) + at;
      HR_UNROLL for (std::uint32_t u = 0; u < kCount; ++u) {
        StoreVector<kAligned>(to + std::size_t{u} * step, vectors[u]);
      }
    }
  }

  static HR_KERNEL void Part(const KernelWork& work, const KernelStretch& stretch,
                             std::uint32_t begin, std::uint32_t end) {
    HR_NO_UNROLL for (std::uint32_t at = begin; at < end; ++at) {
      const auto byte = Load<std::uint8_t>(InputOf(work, stretch, stretch.first_input) + at);
      HR_NO_UNROLL for (std::uint32_t i = 0; i < stretch.outputs_count; ++i) {
        Store<std::uint8_t>(OutputOf(work, stretch, stretch.first_output + i) + at, byte);
      }
    }
  }
};

// All that thread `thread` of `threads` does.
template <class Move, bool kAligned>
HR_KERNEL void MoveUnits(const KernelWork& work, std::uint32_t thread, std::uint32_t threads) {
  if (work.stretches_count == 0) return;
  constexpr std::uint32_t kAtOnce = kAligned ? Move::kUnroll : Move::kUnrollUnaligned;
  const std::uint32_t units = work.stretches[work.stretches_count - 1].units_end;
  std::uint32_t index = 0;
  for (std::uint32_t unit = thread; unit < units;) {
    while (unit >= work.stretches[index].units_end) ++index;
    const KernelStretch& stretch = work.stretches[index];
    const std::uint32_t lead = LeadOf(work, stretch);
    const std::uint32_t first = index == 0 ? 0 : work.stretches[index - 1].units_end;
    // Counted in the stretch's bytes, `lead` more than the real ones.
    const std::uint32_t begin = (unit - first) * kUnitSize;
    const std::uint32_t end = begin + kUnitSize;
    const std::uint32_t limit = lead + stretch.size;
    const std::uint64_t last_end = end + std::uint64_t{kAtOnce - 1} * threads * kUnitSize;
    if (begin >= lead && last_end <= limit) {
      Move::template Units<kAligned, kAtOnce>(work, stretch, begin - lead, threads * kUnitSize);
      unit += kAtOnce * threads;
      continue;
    }
    if (begin >= lead && end <= limit) {
      Move::template Units<kAligned, 1>(work, stretch, begin - lead, 0);
    } else {
      Move::Part(work, stretch, begin > lead ? begin - lead : 0,
                 (end < limit ? end : limit) - lead);
    }
    unit += threads;
  }
}

template <class Element, class Operation, std::uint32_t kInputs>
HR_KERNEL void ReduceAligned(const KernelWork& work, std::uint32_t thread, std::uint32_t threads) {
  MoveUnits<Reduce<Element, Operation, kInputs>, true>(work, thread, threads);
}

// kGradients: this is what gradients are summed by, so the loops for 2, 4 and 8 inputs are written
// out.
template <class Element, class Operation, bool kGradients>
HR_KERNEL void ReduceBody(const KernelWork& work, std::uint32_t thread, std::uint32_t threads) {
  if (!work.aligned) {
    return MoveUnits<Reduce<Element, Operation, 0>, false>(work, thread, threads);
  }
  if constexpr (kGradients) {
    switch (work.inputs_count) {
      case 2:
        return ReduceAligned<Element, Operation, 2>(work, thread, threads);
      case 4:
        return ReduceAligned<Element, Operation, 4>(work, thread, threads);
      case 8:
        return ReduceAligned<Element, Operation, 8>(work, thread, threads);
      default:
        break;
    }
  }
  ReduceAligned<Element, Operation, 0>(work, thread, threads);
}

HR_KERNEL void CopyBody(const KernelWork& work, std::uint32_t thread, std::uint32_t threads) {
  if (work.aligned) return MoveUnits<Copy, true>(work, thread, threads);
  MoveUnits<Copy, false>(work, thread, threads);
}

}  // namespace headrace::transport::kernels
