/* The public header alone must compile as C99 and mean the same in C as in C++. */
#include <headrace/headrace.h>

size_t c_size_of_options(void) { return sizeof(hr_options); }
size_t c_size_of_error(void) { return sizeof(hr_error); }
size_t c_size_of_spec(void) { return sizeof(hr_tensor_spec); }
size_t c_size_of_piece(void) { return sizeof(hr_piece); }
size_t c_size_of_layout_options(void) { return sizeof(hr_layout_options); }
size_t c_size_of_counters(void) { return sizeof(hr_counters); }
