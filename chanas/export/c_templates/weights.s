    .section .rodata
    .balign 64
    .globl @NAME@_weights
    .hidden @NAME@_weights
    .type @NAME@_weights, %object
@NAME@_weights:
    .incbin "weights.bin"
    .size @NAME@_weights, . - @NAME@_weights
    .section .note.GNU-stack,"",%progbits
