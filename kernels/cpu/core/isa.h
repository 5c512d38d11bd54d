// What the CPU can run, from CPUID bits and the registers the operating system saves; never from a model name.
#pragma once
#include "kernels.h"

namespace llmrun {

// Comma-separated feature names found.
const char* cpu_features();

// The builds in this library, slowest first.
const KernelTable* const* builds(int* count);

// Why a build cannot run here; "" when it can; nullptr when there is no build of that name.
const char* build_refused(const char* name);

// Why the system gives this process no tile registers; "" when it does (from the first call on).
const char* tiles_refused();

// The fastest usable build, or the named one; nullptr if it cannot run here.
const KernelTable* choose_build(const char* name);

}  // namespace llmrun
