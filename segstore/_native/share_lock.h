/* The fields of a lock's word (share_lock.c). */
#ifndef SEG_SHARE_LOCK_H
#define SEG_SHARE_LOCK_H

#include <stdint.h>

#define SEG_WAITED 0x80000000u /* set while a thread waits */

/* The owner within its process: SEG_OF_*. */
static inline int32_t seg_lock_who(uint64_t word)
{
    return (int32_t)(((uint32_t)word & ~SEG_WAITED) - 1) & 3;
}

#endif
