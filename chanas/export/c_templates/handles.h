/* For several threads: each takes a handle of its own, with memory for activations of its own (as much as above, from
   the heap). A handle may go from thread to thread, but serves one call at a time. */
typedef struct @NAME@_handle @NAME@_handle;

/* A new handle; NULL where there is no memory. */
@NAME@_handle *@NAME@_create(void);

/* Runs the network `num` times, one after the other: the arguments hold as many inputs and outputs, each right behind
   the one before. The program is compiled for one at a time, so a batch takes as long as its parts. Returns the first
   code that is not @MACRO@_OK. */
int @NAME@_run_with(@NAME@_handle *handle, size_t num, @PARAMETERS@);

/* Gives a handle back; NULL is none. */
void @NAME@_destroy(@NAME@_handle *handle);
