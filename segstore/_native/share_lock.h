/* What a lock's word says (share_lock.c). */
#ifndef SEG_SHARE_LOCK_H
#define SEG_SHARE_LOCK_H

#include <stdint.h>

#define SEG_WAITED 0x80000000u /* the bit that says that somebody waits */

/* Who of a process is the owner. */
static inline int32_t seg_lock_who(uint64_t word)
{
    return (int32_t)(((uint32_t)word & ~SEG_WAITED) - 1) & 3;
}

#endif
