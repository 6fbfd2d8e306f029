// Arbitrary bytes as a Cap'n Proto message: every structure a client sends is walked from end to
// end, and what control does with the values is done. Only kj's own exceptions may come out.
#include <capnp/dynamic.h>
#include <capnp/pretty-print.h>
#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/schema/client.capnp.h"
#include "service/accounts/memory_accounting.h"
#include "service/accounts/rank_table.h"
#include "service/rpc/bootstrap.h"

namespace {

using namespace headrace;  // NOLINT: this program has no names of its own

constexpr std::uint64_t kSegmentSize = 1U << 20U;
// Less than the service allows, so that one input is quick.
constexpr std::uint64_t kTraversalWords = 1U << 14U;

std::string TextOf(capnp::Text::Reader text) { return {text.begin(), text.size()}; }

void Join(schema::AttachRequest::Reader request) {
  service::RankTable table;
  const Result<service::RankSlot> slot = table.Join({.job = TextOf(request.getJob()),
                                                     .rank = request.getRank(),
                                                     .world_size = request.getWorldSize(),
                                                     .session = SessionId{1}});
  if (!slot) return;
  HR_CHECK(request.getRank() < request.getWorldSize(), request.getRank());
  HR_CHECK(service::CheckJobName(TextOf(request.getJob())).ok());
  table.Depart(SessionId{1}, false, "fuzzed");
  HR_CHECK(table.jobs_count() == 0 && table.ranks_count() == 0);
}

void Register(capnp::List<schema::TensorSpec>::Reader specs) {
  service::MemoryAccounting memory;
  memory.ConfirmSegment(memory.ReserveSegment(kSegmentSize).value());
  std::vector<service::Tensor> tensors;
  for (const schema::TensorSpec::Reader spec : specs) {
    tensors.push_back({.name = TextOf(spec.getName()),
                       .segment = SegmentId{spec.getSegment()},
                       .offset = spec.getOffset(),
                       .count = spec.getCount(),
                       .dtype = static_cast<DType>(spec.getDtype()),
                       .order = spec.getOrder()});
  }
  if (!memory.AddTensors(tensors)) return;
  for (const service::Tensor& tensor : tensors) {
    HR_CHECK(tensor.offset <= kSegmentSize, tensor.offset);
    HR_CHECK(tensor.count > 0 && tensor.count <= kSegmentSize, tensor.count);
    HR_CHECK(tensor.offset + tensor.Bytes() <= kSegmentSize, tensor.offset, tensor.count);
  }
}

// A reader over the bytes, with bounds like those of the service's connections.
template <typename Use>
void WithMessage(kj::ArrayPtr<const capnp::word> words, Use use) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = kTraversalWords;
  options.nestingLimit = 16;
  // What is thrown says that the message is malformed; the connection would be closed.
  (void)kj::runCatchingExceptions([&] {
    capnp::FlatArrayMessageReader reader(words, options);
    use(reader);
  });
}

template <typename Struct>
void Walk(kj::ArrayPtr<const capnp::word> words) {
  WithMessage(words, [](capnp::MessageReader& reader) {
    (void)capnp::prettyPrint(reader.getRoot<Struct>()).flatten();
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  std::vector<capnp::word> buffer((size + sizeof(capnp::word) - 1) / sizeof(capnp::word));
  if (size > 0) std::memcpy(static_cast<void*>(buffer.data()), bytes, size);
  const kj::ArrayPtr<const capnp::word> words(buffer.data(), buffer.size());
  Walk<capnp::rpc::Message>(words);
  Walk<schema::AttachRequest>(words);
  Walk<schema::Bootstrap::AttachParams>(words);
  Walk<schema::Session::RegisterTensorsParams>(words);
  Walk<schema::Session::RegisterSegmentParams>(words);
  WithMessage(words,
              [](capnp::MessageReader& reader) { Join(reader.getRoot<schema::AttachRequest>()); });
  WithMessage(words, [](capnp::MessageReader& reader) {
    Register(reader.getRoot<schema::Session::RegisterTensorsParams>().getTensors());
  });
  WithMessage(words, [](capnp::MessageReader& reader) {
    const auto hello = reader.getRoot<schema::Hello>();
    const Status status = service::CheckHello(hello, "0.1.0");
    HR_CHECK(status.ok() == (hello.getProtocolVersion() == schema::PROTOCOL_VERSION));
  });
  return 0;
}
