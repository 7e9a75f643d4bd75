// A program that writes one byte to descriptor 3 with its first instructions, and ends with a code: the byte
// MARK, or the first one of its argument 1.
.globl _start
_start:
	movl $1, %eax
	movl $3, %edi
	movl $1, %edx
#ifdef MARK
	leaq mark(%rip), %rsi
#else
	movq 16(%rsp), %rsi
#endif
	syscall
	movl $60, %eax
	movl $CODE, %edi
	syscall
#ifdef MARK
mark: .byte MARK
#endif
