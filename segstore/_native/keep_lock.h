/* When an append keeps the interpreter's lock: tail_append.c says why. */
#ifndef SEG_KEEP_LOCK_H
#define SEG_KEEP_LOCK_H

#include <stdint.h>

#include "bytes.h"
#include "contract/log.h"

enum { APART = 1000 };      /* appends */
#define TOO_LONG 20000000   /* ns; the interpreter itself lets a thread keep the lock for 5 ms */

/* Whether an append does nothing but write to one file, by C's own function. */
static inline int is_plain_write(const seg_tail *t)
{
    return !t->write && !t->flush_messages && !t->n_followers;
}

/* Let the next appends be made with the lock let go, if one took so long. */
static inline void note_time(seg_tail *t, int64_t ns)
{
    if (ns >= TOO_LONG)
        __atomic_store_n(&t->apart, APART, __ATOMIC_RELAXED);
}

#endif
