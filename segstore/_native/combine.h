/* The slots of appends that wait for a log's lock (combine.c), for append.c and tail.c. */
#ifndef SEG_COMBINE_H
#define SEG_COMBINE_H

#include "tail.h"

enum { SEG_HOLDS, SEG_ANSWERED, SEG_WITHDRAWN };

/* Wait for the lock, or for an answer of its holder. SEG_HOLDS: the caller has the lock, and makes its append;
 * SEG_ANSWERED: `answer` has the result; SEG_WITHDRAWN: a signal has come first, and nothing is done. */
SEG_HIDDEN int seg_combine_enter(seg_tail *t, seg_waiting *w);
/* Answer all appends that wait in slots; the caller holds the lock, and leaves it next. 1: new records are visible; 0;
 * -EINTR: a signal's handler has raised an error in the write. */
SEG_HIDDEN int64_t seg_combine(seg_tail *t);

#endif
