// Every move of a vector may meet any address.
//
// In functions that call nothing gcc keeps the stack unaligned if it sees no aligned access by the
// stack pointer, and until version 15 it does not see those by a copy of that pointer (GCC PR 109780):
// programs then die of an aligned move to an array of their own. The assembler writes such moves as
// unaligned ones, which are as fast where the address is aligned.
#if defined(__AVX__) && !defined(__clang__)
asm(".macro vmovaps operands:vararg\n vmovups \\operands\n.endm\n"
    ".macro vmovapd operands:vararg\n vmovupd \\operands\n.endm\n"
    ".macro vmovdqa operands:vararg\n vmovdqu \\operands\n.endm\n"
    ".macro vmovdqa32 operands:vararg\n vmovdqu32 \\operands\n.endm\n"
    ".macro vmovdqa64 operands:vararg\n vmovdqu64 \\operands\n.endm\n");
#endif
