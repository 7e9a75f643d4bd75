package policy

import (
	"regexp"
	"slices"
	"strings"
)

// secretFile is a file or folder of a home that is hidden unless somebody names it.
type secretFile struct {
	path string // below the home
	why  string // what is in it; --explain prints this
}

// secretFiles are those whose replacement ends a command that runs meanwhile. So files that programs replace often are
// not here: they are among the histories, or not hidden, such as ~/.Xauthority.
var secretFiles = []secretFile{
	{".ssh", "private keys, and the hosts that they open"},
	{".gnupg", "private keys"},
	{".aws", "keys of a cloud"},
	{".azure", "tokens of a cloud"},
	{".config/gcloud", "tokens of a cloud"},
	{".config/doctl", "tokens of a cloud"},
	{".config/hcloud", "tokens of a cloud"},
	{".config/heroku", "tokens of a cloud"},
	{".oci", "keys of a cloud"},
	{".aliyun", "keys of a cloud"},
	{".terraform.d/credentials.tfrc.json", "tokens of a cloud"},
	{".fly", "tokens of a cloud"},
	{".kube", "keys of clusters"},
	{".docker/config.json", "passwords of image registries"},
	{".config/containers/auth.json", "passwords of image registries"},
	{".netrc", "passwords of hosts"},
	{"_netrc", "passwords of hosts"},
	{".pgpass", "passwords of databases"},
	{".my.cnf", "passwords of databases"},
	{".mylogin.cnf", "passwords of databases"},
	{".git-credentials", "passwords of forges"},
	{".config/git/credentials", "passwords of forges"},
	{".config/gh", "tokens of a forge"},
	{".config/glab-cli", "tokens of a forge"},
	{".config/hub", "tokens of a forge"},
	{".npmrc", "tokens of package registries"},
	{".yarnrc.yml", "tokens of package registries"},
	{".pypirc", "tokens of package registries"},
	{".config/pypoetry/auth.toml", "tokens of package registries"},
	{".cargo/credentials", "tokens of package registries"},
	{".cargo/credentials.toml", "tokens of package registries"},
	{".gem/credentials", "tokens of package registries"},
	{".m2/settings.xml", "passwords of package registries"},
	{".m2/settings-security.xml", "passwords of package registries"},
	{".gradle/gradle.properties", "passwords of package registries"},
	{".composer/auth.json", "tokens of package registries"},
	{".config/composer/auth.json", "tokens of package registries"},
	{".vault-token", "a token of a store of secrets"},
	{".password-store", "a store of passwords"},
	{".config/op", "a store of passwords"},
	{".config/Bitwarden CLI", "a store of passwords"},
	{".config/rclone", "passwords of stores of files"},
	{".config/sops/age", "private keys"},
	{".config/age", "private keys"},
	{".local/share/keyrings", "a keyring"},
	{".local/share/kwalletd", "a keyring"},
	{".pki", "private keys of a browser"},
	{".mozilla", "cookies and passwords of a browser"},
	{".thunderbird", "mail and passwords"},
	{".config/google-chrome", "cookies and passwords of a browser"},
	{".config/chromium", "cookies and passwords of a browser"},
	{".config/BraveSoftware", "cookies and passwords of a browser"},
	{".config/microsoft-edge", "cookies and passwords of a browser"},
	{".config/vivaldi", "cookies and passwords of a browser"},
	{".config/opera", "cookies and passwords of a browser"},
	{".codex/auth.json", "tokens of a model"},
	{".claude/.credentials.json", "tokens of a model"},
	{".config/execagent", "keys of agents"},
	{".local/share/fish", typed},
	{".local/share/atuin", typed},
	{".local/state/nvim/shada", copied},
	{".rediscli_history", typed},
	{".node_repl_history", typed},
}

// histories are secret files that programs replace when they end. That ends no command, but a command in namespaces
// then sees the new file. So where a program keeps its history in a folder of its own, as fish does, the folder is
// among the secretFiles.
var histories = []secretFile{
	{".bash_history", typed},
	{".zsh_history", typed},
	{".zhistory", typed},
	{".histfile", typed}, // that of zsh, as its first start proposes
	{".sh_history", typed},
	{".ash_history", typed},
	{".local/state/bash/history", typed},
	{".local/state/zsh/history", typed},
	{".config/nushell/history.txt", typed},
	{".psql_history", typed},
	{".mysql_history", typed},
	{".mariadb_history", typed},
	{".sqlite_history", typed},
	{".python_history", typed},
	{".irb_history", typed},
	{".php_history", typed},
	{".lesshst", typed},
	{".local/state/lesshst", typed},
	{".local/share/lesshst", typed},
	{".viminfo", copied},
}

// What histories have in them.
const (
	typed  = "commands with passwords"
	copied = "texts that were copied, and commands"
)

// secretWords are the ends of the names of variables that hold secrets. A word of up to four letters stands
// alone or after a _, so COMPASS and TPAT are no secrets.
var secretWords = []string{
	"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PASS", "CREDENTIAL", "CREDENTIALS", "APIKEY", "PAT",
	"API_KEY", "ACCESS_KEY", "ACCESS_KEY_ID", "SECRET_KEY", "PRIVATE_KEY", "SIGNING_KEY", "ENCRYPTION_KEY", "MASTER_KEY", "SERVICE_KEY", "ACCOUNT_KEY",
}

// secretNames are names that secretWords does not find.
var secretNames = []string{"PGPASSWORD", "MYSQL_PWD", "REDISCLI_AUTH", "NPM_CONFIG__AUTH", "DOCKER_AUTH_CONFIG", "SSHPASS"}

// secretValue matches values that are secrets, or have one in them, whatever they are called: a URL with a
// password, tokens and keys of a known shape, and headers with one.
var secretValue = regexp.MustCompile(`(^|[\s,;:='"])(` +
	`[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s]*:[^/?#@\s]+@|` +
	`(gh[pousr]_|github_pat_|glpat-|npm_|pypi-|xox[abpr]-|xapp-|sk-|[rs]k_live_|AKIA|ASIA|AIza|hf_|dop_v1_)[A-Za-z0-9_-]{12}|` +
	`eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.|AGE-SECRET-KEY-1|` +
	`(?i:authorization): *(?i:basic|bearer|token) +\S)|-----BEGIN [A-Z ]*PRIVATE KEY`)

// isSecret reports whether a variable looks like a secret.
func isSecret(name, value string) bool {
	upper := strings.ToUpper(name)
	if value == "" {
		return false
	}
	if slices.Contains(secretNames, upper) || secretValue.MatchString(value) {
		return true
	}
	return slices.ContainsFunc(secretWords, func(word string) bool {
		before, ok := strings.CutSuffix(upper, word)
		return ok && (before == "" || strings.HasSuffix(before, "_") || len(word) > 4)
	})
}
