/* How an append comes to its log's lock, or is made by who holds it (combine.c), as append.c and tail.c see it. */
#ifndef SEG_COMBINE_H
#define SEG_COMBINE_H

#include "tail.h"

enum { SEG_HOLDS, SEG_ANSWERED, SEG_WITHDRAWN };

/* Wait for the lock, or for an answer of who holds it. SEG_HOLDS: the caller has the lock, and its append is to be made;
 * SEG_ANSWERED: `answer` says what became of it; SEG_WITHDRAWN: a signal has come first, and nothing is done. */
SEG_HIDDEN int seg_combine_enter(seg_tail *t, seg_waiting *w);
/* Answer all appends that wait in slots; the caller holds the lock, and leaves it next. 1: readers see more; 0; -EINTR: a
 * signal's handler has raised an error in the write. */
SEG_HIDDEN int64_t seg_combine(seg_tail *t);

#endif
