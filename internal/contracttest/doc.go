// Package contracttest compares code with the contract ([contract.Contract]). [Cases] has documents for a
// record: complete ones, and ones that are wrong or right in one place. [Valid] judges a document
// by the JSON Schema that is published, and a [Conversation] judges the messages of a connection.
//
// It is for tests, because the validator is nothing that a program of ours needs.
package contracttest
