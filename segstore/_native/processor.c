/* The processor of a Python thread, and the move to another. Thread contract: any thread; each call is for its own
 * thread.
 */
#define _GNU_SOURCE
#include "bytes.h"
#include "contract/threads.h"
#include "system.h"

int32_t seg_processor(void)
{
    return processor();
}

int32_t seg_leave_processor(int32_t number)
{
    return leave_processor(number);
}
