/* Threads of directories, and the processors of threads (hand_over.c, processor.c). */
#ifndef SEG_CONTRACT_THREADS_H
#define SEG_CONTRACT_THREADS_H

#include <stdint.h>

/* --- hand_over.c: the thread of a directory that writes for followers' tails -------------------------------------- */
/* Both are C's own memory, because a write may outlive all of Python's references. The caller that started a thread, or
 * made a job, calls its free function once; the memory is freed after its last use. */
typedef struct seg_disk_thread seg_disk_thread;
typedef struct seg_job seg_job;

/* Start a thread; NULL if that fails. */
seg_disk_thread *seg_disk_thread_start(void);
/* Have the thread end after all posted jobs, and wait for that: 1; 0 after timeout_ns, or at a signal. May be
 * repeated. */
int64_t seg_disk_thread_end(seg_disk_thread *d, int64_t timeout_ns);
void seg_disk_thread_free(seg_disk_thread *d);
/* Make a job for a tail that this thread writes for; NULL without memory. */
seg_job *seg_job_new(seg_disk_thread *d);
void seg_job_free(seg_job *j);

/* --- processor.c ------------------------------------------------------------------------------------------------- */
/* The number of the processor on which this thread runs; -1: not known, as on macOS. */
int32_t seg_processor(void);
/* Have the kernel move this thread from that processor to another that it may use: 0; -1 if there is none. */
int32_t seg_leave_processor(int32_t number);

#endif
