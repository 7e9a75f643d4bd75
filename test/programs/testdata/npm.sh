# needs: npm node
export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false npm_config_logs_max=0 npm_config_offline=true npm_config_progress=false
mkdir -p library/lib app
cat >library/package.json <<'M'
{"name": "library", "version": "1.0.0", "main": "lib/index.js", "bin": {"greet": "lib/greet.js"}, "scripts": {"install": "node -e \"require('fs').writeFileSync('installed', '')\""}}
M
echo 'exports.name = "library"' >library/lib/index.js
printf '#!/usr/bin/env node\nconsole.log("greetings")\n' >library/lib/greet.js
cat >app/package.json <<'M'
{"name": "app", "version": "1.0.0", "scripts": {"test": "greet && node -p 'require(\"library\").name'"}}
M
(cd library && npm pack --silent)
cd app
npm install --silent ../library/library-1.0.0.tgz
npm test --silent
npm ls --parseable | sed 's|.*/||'
npm install --silent ../library
test -L node_modules/library && echo linked
npm test --silent
npm uninstall --silent library
npm run missing --silent 2>/dev/null || echo "status $?"
