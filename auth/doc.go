// Package auth signs the requests that executors and harnesses send to a registry
// (remote.md 12). A [TokenSource] makes the headers of each request:
//
//	source                made by                 headers
//	API key               [APIKey], [OpenSignIn]  Authorization: Bearer
//	API key in a file     [OpenKeyFile]           the same, with the key that the file holds now
//	ChatGPT sign-in       [OpenSignIn]            the same and account headers; refreshed
//	bearer                [Bearer], [ReadBearer]  Authorization: Bearer
//	ChatGPT token, stdin  [ReadChatGPTToken]      as the sign-in, https only, never refreshed
//	rotating, stdin       [ReadCredentials]       Authorization: Bearer, with the newest token
//	agent identity        [NewAgentIdentity]      Authorization: AgentAssertion, account headers
//	workload identity     [NewWorkloadIdentity]   Authorization: Bearer, account headers; renewed
//
// The account headers are ChatGPT-Account-ID and X-OpenAI-Fedramp.
//
// The package reads no environment variable. It logs only to the Logger of a
// [SignInConfig], [KeyFileConfig] or [WorkloadConfig]. Values that hold a secret print as "[redacted]" with
// every verb, and no error quotes a secret. All input from outside is bounded.
//
// A registry checks assertions with [ParseAssertion].
package auth
