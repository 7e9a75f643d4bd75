# needs: perl
seq 200 >text
perl -pi -e 's/1/one/g' text
perl -i.orig -ne 'print unless /2/' text
perl -MFile::Temp=tempfile,tempdir -MFile::Path=make_path,remove_tree -MFile::Copy -MCwd -e '
	my ($f, $name) = tempfile(DIR => ".", UNLINK => 1); print $f "x"; close $f; printf "%o\n", (stat $name)[2];
	make_path("a/b/c"); copy("text", "a/copy"); move("a/copy", "a/b/moved"); chmod 0604, "a/b/moved"; utime 1e9, 1e9, "a/b/moved";
	symlink "b/moved", "a/link"; link "a/b/moved", "a/hard"; rename "a/hard", "a/harder"; remove_tree("a/b/c");
	open my $out, "+>>", "a/log" or die; print $out "line $_\n" for 1..3; seek $out, 0, 0; print scalar(() = <$out>), "\n";
	opendir my $d, "a" or die; print join(" ", sort grep !/^\./, readdir $d), "\n"; print `echo from a shell`; unlink "none" or print "$!\n";
	mkdir "a" or print "$!\n"; rmdir "a" or print "$!\n"; if (my $pid = fork) { waitpid $pid, 0; print $? >> 8, "\n" } else { exec "sh", "-c", "exit 5" }'
wc -l text text.orig
