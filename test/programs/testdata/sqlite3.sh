# needs: sqlite3
{
	echo 'pragma journal_mode=wal;'
	echo 'create table t (n integer primary key, text text);'
	echo 'begin;'
	for i in $(seq 400); do echo "insert into t values ($i, hex(zeroblob($i)));"; done
	echo 'commit;'
	echo 'select count(*), sum(length(text)) from t;'
} | sqlite3 data.db
# Two that wait for each other.
for i in 1 2; do
	for j in $(seq 10); do echo "pragma busy_timeout=60000; insert into t values (${i}000 + $j, 'x');"; done | sqlite3 data.db >/dev/null &
done
wait
sqlite3 data.db 'select count(*) from t; pragma integrity_check; delete from t where n > 1000; vacuum; pragma journal_mode=delete;'
sqlite3 data.db .dump >dump
sqlite3 copy.db <dump
sqlite3 copy.db 'select max(n) from t'
rm data.db # it knows in which order the two came
