package mcpserver

// Unasked has programs print at most so much that is no answer, and so much of it forgotten in a
// second, both in bytes. It is for before the tests.
func Unasked(most, rate int) { maxUnasked, unaskedRate = most, rate }
