// Package suite checks that a program speaks the protocol as docs/protocol describes it.
//
// [Cases] are data: conversations of a client, which [Suite.CheckExecutor] holds with an executor, and parts
// of an executor, which [Suite.CheckClient] plays for a client. Each message of the program is judged by the
// contract too. A [Report] says how each case has ended.
//
// The program that is checked is not trusted. Each case has a time limit, and what is kept of a program has a bound.
// It shares neither transport nor encoder with our agent and our client.
package suite
