// Package probe finds out which layers can confine a process on this host, by
// trying them. [Host] starts children of our own binary ([Main]). Each child
// puts layers on itself and then tries actions that the layers forbid. For a
// layer that does not work, Host returns the error and advice for the operator.
// Facts about the host, such as settings of the kernel, only shape that advice:
// they never decide whether a layer works. Linux only.
package probe
