// Package transfer works on the files of an agent.
//
// [Copy] is agent cp. It copies trees between this machine and an agent, as a [Plan] describes. It
// runs one end of package filecopy here and the other end as a process at the agent, and shows the
// progress.
//
// [Files] lists, prints, removes and patches files and makes directories, by file requests alone,
// which every exec-server answers. [PatchHere] patches files of this machine.
package transfer
