// Package auth signs the requests that executors and harnesses send to a registry
// (remote.md 12). A [TokenSource] sets the headers of one request, made anew each
// time:
//
//	source                made by                 headers
//	API key               [APIKey], [OpenSignIn]  Authorization: Bearer
//	API key in a file     [OpenKeyFile]           the same, with what the file says now
//	ChatGPT sign-in       [OpenSignIn]            the same and account headers; refreshed
//	bearer                [Bearer], [ReadBearer]  Authorization: Bearer
//	ChatGPT token, stdin  [ReadChatGPTToken]      as the sign-in, https only, never refreshed
//	rotating, stdin       [ReadCredentials]       Authorization: Bearer, with the newest token
//	agent identity        [NewAgentIdentity]      Authorization: AgentAssertion, account headers
//
// The account headers are ChatGPT-Account-ID and X-OpenAI-Fedramp.
//
// The package reads no environment variable. It logs only to the Logger of a
// [SignInConfig] or [KeyFileConfig]. Values with a secret in them print as
// "[redacted]", whatever the verb, and no error quotes a secret. All input from outside is
// bounded.
//
// A registry checks assertions with [ParseAssertion].
package auth
