// Package declared reads what plugins and the configuration of an executor declare: MCP servers
// and connectors. Nothing is opened or started, and nothing is expanded: a text such as
// ${PLUGIN_ROOT} is handed on as it is (capabilities.md 6.2).
//
// An error in one declaration is a warning; the other declarations still count.
package declared
