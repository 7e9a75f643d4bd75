package mcpserver

import "time"

// Hurry has programs print at most so much that is no answer, and so much of it forgotten in a
// second, both in bytes; and gives them so long to end by themselves. It is for before the tests.
func Hurry(most, rate int, l time.Duration) { maxUnasked, unaskedRate, leave = most, rate, l }
