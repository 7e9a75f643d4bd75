// Package probe finds out which layers can confine a process on this host, by
// trying them: [Host] starts children of our own binary ([Main]), each of which
// puts layers on itself and then tries what they forbid. For a layer that does
// not work it tells the error, and what an operator can do about it. Facts
// about the host, such as settings of the kernel, only help to word that
// advice: they never decide whether a layer works. Linux only.
package probe
