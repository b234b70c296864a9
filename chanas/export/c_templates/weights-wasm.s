    .section .rodata.@NAME@_weights,"",@
    .p2align 6
    .globl @NAME@_weights
    .hidden @NAME@_weights
    .type @NAME@_weights, @object
@NAME@_weights:
    .incbin "weights.bin"
.Lend:
    .size @NAME@_weights, .Lend - @NAME@_weights
