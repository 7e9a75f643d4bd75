# needs: bash readlink sed
# What a process may ask of itself. bash opens the files, without a process in between.
for self in /proc/self /proc/thread-self /proc/$$ /proc/thread-self/../$$; do
	for file in "$self"/* "$self"/{attr,ns}/* "$self"/fd/0 "$self"/fdinfo/0 "$self"/net/{dev,tcp}; do
		said=
		if [ -d "$file" ]; then
			inside=("$file"/*)
			[ -e "${inside[0]}" ] || said='is empty'
		elif ! { read -r -N 1 _ <"$file"; } 2>error; then
			read -r said <error || : # nothing is in it
		fi
		[ -e "$file" ] || said="$said, is missing"
		file=${file//$$/PID}
		echo "$file: ${said##*: }"
	done
done
readlink /proc/self/ns/* /proc/thread-self/{exe,cwd,root} | sed 's/[0-9]*//g'
rm error
