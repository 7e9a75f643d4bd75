// Package terminals knows which terminals are a command's own: those that it was
// given, those that it has made, and its controlling one. A terminal has a number
// that another one gets when it has ended, so it is known by its object, which is
// held without keeping it in use. Linux only.
package supervise
