// Package caps takes capabilities away, for good, from a process of ours before it does what it is
// there for: from one thread or from all, and makes sure that none is left. Nothing here gives any.
// Linux only.
package caps
