// Functions that are compiled for several processors.
#pragma once

// In front of a function: it is compiled for what x86 processors may have, chosen when the library is loaded.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DISTDL_FOR_PROCESSORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DISTDL_FOR_PROCESSORS
#endif
