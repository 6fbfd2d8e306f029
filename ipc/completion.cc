#include "ipc/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ipc/base/check.h"
#include "ipc/futex.h"
#include "ipc/shared_words.h"

namespace headrace::ipc {
namespace {

// The kernel compares half a word, which repeats after 64 laps of the ring. A waiter preempted for
// exactly that long between its load and its sleep would miss the wake-up: it looks again.
constexpr TimeNs kSleepMax = kSecond;

static_assert(kErrorTextsMax <= 0xff, "CompletionWord::text_index has 8 bits, and one other value");

// So much of another operation's text leaves room for whose it is in a client's error text.
constexpr std::size_t kOthersTextMax = 380;
constexpr std::string_view kOthersTextNote = "the text of a later operation with the same error";

}  // namespace

bool CompletionWriter::End(std::uint64_t sequence, Code code, std::string_view text,
                           std::uint8_t source) {
  HR_CHECK(sequence > 0 && sequence <= kSequenceMax, sequence);
  HR_CHECK(code == Code::kOk || source == 0, sequence, static_cast<int>(source));
  CompletionWord word{.sequence = sequence, .text_index = source, .code = code};
  if (code != Code::kOk) word.text_index = WriteText(sequence, text);
  std::atomic<std::uint64_t>& slot = layout_.words[sequence % kOperationsMax];
  // Release: pairs with the acquire loads of CompletionReader and RingWriter::HasRoom, so results
  // and error text are visible first.
  slot.store(word.Pack(), std::memory_order_release);
  // Store word, then load client_waiters; Wait counts itself, then the kernel compares the word.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (layout_.header.client_waiters.load(std::memory_order_relaxed) == 0) return false;
  FutexWakeAll(LowHalf(slot));
  return true;
}

std::uint8_t CompletionWriter::WriteText(std::uint64_t sequence, std::string_view text) {
  const std::uint32_t index = texts_written_++ % kErrorTextsMax;
  ErrorText& entry = layout_.texts[index];
  char copy[sizeof entry.text] = {};
  std::memcpy(copy, text.data(), std::min(text.size(), sizeof copy - 1));
  // 0 while the text changes: a reader that sees it, before or after its copy, takes no text.
  entry.sequence.store(0, std::memory_order_relaxed);
  // Release fence, pairs with the acquire fence in Read: who sees a new word also sees the 0.
  std::atomic_thread_fence(std::memory_order_release);
  StoreWords(entry.text, copy, sizeof copy);
  entry.sequence.store(sequence, std::memory_order_release);  // pairs with Read's acquire
  return static_cast<std::uint8_t>(index);
}

bool CompletionReader::HasEnded(std::uint64_t sequence) const {
  // Acquire: pairs with CompletionWriter::End.
  return ipc::HasEnded(layout_->words[sequence % kOperationsMax].load(std::memory_order_acquire),
                       sequence);
}

bool CompletionReader::Wait(std::uint64_t sequence, TimeNs timeout_ns) const {
  const std::atomic<std::uint64_t>& slot = layout_->words[sequence % kOperationsMax];
  std::atomic<std::uint32_t>& waiters = layout_->header.client_waiters;
  const TimeNs deadline =
      timeout_ns == kNever || timeout_ns > kNever / 2 ? kNever : MonotonicNow() + timeout_ns;
  waiters.fetch_add(1);  // seq_cst: the other half of the pair in CompletionWriter::End
  std::uint64_t word = slot.load();
  while (!ipc::HasEnded(word, sequence)) {
    const TimeNs left = deadline == kNever ? kNever : deadline - MonotonicNow();
    if (left <= 0) break;
    FutexWait(LowHalf(slot), static_cast<std::uint32_t>(word), std::min(left, kSleepMax));
    word = slot.load();
  }
  waiters.fetch_sub(1);
  return ipc::HasEnded(word, sequence);
}

Outcome CompletionReader::Read(std::uint64_t sequence) const {
  const CompletionWord word = CompletionWord::Unpack(
      layout_->words[sequence % kOperationsMax].load(std::memory_order_acquire));
  if (word.sequence != sequence || word.code == Code::kOk) return {};
  Outcome outcome{word.code, std::string(CodeName(word.code))};
  if (word.text_index >= kErrorTextsMax) return outcome;
  const ErrorText& entry = layout_->texts[word.text_index];
  const std::uint64_t owner = entry.sequence.load(std::memory_order_acquire);
  char text[sizeof entry.text];
  LoadWords(text, entry.text, sizeof text);
  text[sizeof text - 1] = '\0';
  std::atomic_thread_fence(std::memory_order_acquire);  // pairs with WriteText's release fence
  if (owner == 0 || entry.sequence.load(std::memory_order_relaxed) != owner) return outcome;
  if (owner == sequence) {
    outcome.text = text;
    return outcome;
  }
  // One failure ends more operations than there are entries, and the first are waited for first.
  const CompletionWord later = CompletionWord::Unpack(
      layout_->words[owner % kOperationsMax].load(std::memory_order_acquire));
  if (later.sequence == owner && later.code == word.code) {
    outcome.text = fmt::format("{:.{}} ({})", text, kOthersTextMax, kOthersTextNote);
  }
  return outcome;
}

void CompletionReader::EndAllOpen(std::uint64_t last, Code code) const {
  HR_CHECK(code != Code::kOk && last <= kSequenceMax, last);
  const std::uint64_t first = last > kOperationsMax ? last - kOperationsMax + 1 : 1;
  for (std::uint64_t sequence = first; sequence <= last; ++sequence) {
    std::atomic<std::uint64_t>& slot = layout_->words[sequence % kOperationsMax];
    const CompletionWord ended{.sequence = sequence, .text_index = 0xff, .code = code};
    std::uint64_t word = slot.load();
    while (!ipc::HasEnded(word, sequence) && !slot.compare_exchange_weak(word, ended.Pack())) {
    }
    FutexWakeAll(LowHalf(slot));
  }
}

}  // namespace headrace::ipc
