/* A pause within a loop that waits for another thread. */
#ifndef SEG_RELAX_H
#define SEG_RELAX_H

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
