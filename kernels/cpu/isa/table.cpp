// The kernel table of a build.
#include "simd.h"

namespace llmrun {
namespace LLMRUN_BUILD {

void rms_norm(const Job& job);
void quantize(const Job& job);
void linear(const Job& job);
void silu_mul(const Job& job);
void add(const Job& job);
void rope(const Job& job);
void kv_store(const Job& job);
void attention(const Job& job);
void attention_merge(const Job& job);
void argmax(const Job& job);
void log_softmax(const Job& job);
void expert_route(const Job& job);
void expert_input(const Job& job);
void expert_linear(const Job& job);
void expert_hidden(const Job& job);
void expert_combine(const Job& job);
void stream_norm(const Job& job);
void silu_scaled(const Job& job);
void stream_mix(const Job& job);
void stream_add(const Job& job);
void stream_gate(const Job& job);
void index_store(const Job& job);
void index_select(const Job& job);
void sparse_attention(const Job& job);
void short_conv(const Job& job);
void delta_rule(const Job& job);
void gated_norm(const Job& job);
void sigmoid_mul(const Job& job);
void add_scaled(const Job& job);
void layer_norm(const Job& job);
void gelu(const Job& job);
void block_conv(const Job& job);

}  // namespace LLMRUN_BUILD

#define LLMRUN_TEXT_OF(name) #name
#define LLMRUN_TEXT(name) LLMRUN_TEXT_OF(name)
#define LLMRUN_JOIN_OF(a, b) a##b
#define LLMRUN_JOIN(a, b) LLMRUN_JOIN_OF(a, b)

extern const KernelTable LLMRUN_JOIN(LLMRUN_BUILD, _table) = {
    LLMRUN_TEXT(LLMRUN_BUILD),  LLMRUN_BUILD::TILE,           LLMRUN_BUILD::rms_norm, LLMRUN_BUILD::quantize,
    LLMRUN_BUILD::linear,       LLMRUN_BUILD::silu_mul,       LLMRUN_BUILD::add,      LLMRUN_BUILD::rope,
    LLMRUN_BUILD::kv_store,     LLMRUN_BUILD::attention,      LLMRUN_BUILD::attention_merge,
    LLMRUN_BUILD::argmax,       LLMRUN_BUILD::log_softmax,
    LLMRUN_BUILD::expert_route, LLMRUN_BUILD::expert_input,   LLMRUN_BUILD::expert_linear,
    LLMRUN_BUILD::expert_hidden, LLMRUN_BUILD::expert_combine,
    LLMRUN_BUILD::stream_norm,  LLMRUN_BUILD::silu_scaled,    LLMRUN_BUILD::stream_mix,
    LLMRUN_BUILD::stream_add,   LLMRUN_BUILD::stream_gate,    LLMRUN_BUILD::index_store,
    LLMRUN_BUILD::index_select, LLMRUN_BUILD::sparse_attention,
    LLMRUN_BUILD::short_conv,   LLMRUN_BUILD::delta_rule,     LLMRUN_BUILD::gated_norm,
    LLMRUN_BUILD::sigmoid_mul,  LLMRUN_BUILD::add_scaled,
    LLMRUN_BUILD::layer_norm,   LLMRUN_BUILD::gelu,           LLMRUN_BUILD::block_conv,
};

}  // namespace llmrun
